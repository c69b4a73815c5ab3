"""Build stages for workers that share only the output folder."""
