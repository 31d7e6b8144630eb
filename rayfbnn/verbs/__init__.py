"""The verbs that users call: each checks its arguments, then calls run/, reduce/, describe/ or timing/."""
