"""The data of `adapt`: read, split without leaks into training, dev and test, and written as files."""
