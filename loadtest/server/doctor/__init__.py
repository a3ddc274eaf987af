"""`loadtest doctor`: what will stop a plan, and what will be missing, before anything is started."""
