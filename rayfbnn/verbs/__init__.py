"""The verbs that users call: each checks its arguments, then calls run/, answers/, describe/ or timing/."""
