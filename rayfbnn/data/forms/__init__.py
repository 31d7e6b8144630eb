"""How values and tables may be written: levels, numbers in dress, and the shape of CSV files."""
