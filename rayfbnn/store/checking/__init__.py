"""What is recorded of the files of a store, and the checks of what is read from them."""
