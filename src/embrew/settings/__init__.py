"""What can be set in an encoder, as checked data. Importing this needs no torch."""
