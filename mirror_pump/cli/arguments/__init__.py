"""What users type: options, durations, completion."""
