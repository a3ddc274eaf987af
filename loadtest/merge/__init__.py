"""Merge room: raw files of a run in, Parquet and .hlog out, with the acceptance arithmetic and the reconciliation."""
