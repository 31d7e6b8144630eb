"""Tables and lists as HTML, for notebooks and for the report; names without control characters."""
