"""What formulas, traces and transcripts say without a model."""
