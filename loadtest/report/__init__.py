"""Report room: verdict and Parquet in, bytes of HTML, Markdown, JSON, JUnit out. Exporters return bytes."""
