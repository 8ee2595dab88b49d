"""Why it happened, asked afterwards of a log: explanations, other outcomes, diagnoses."""
