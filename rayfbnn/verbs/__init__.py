"""What users can ask for: each verb checks its arguments, then calls run/, reduce/, describe/ or timing/."""
