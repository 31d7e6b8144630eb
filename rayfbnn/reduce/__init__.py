"""What the draws say: reads stores, never samples."""
