"""ftcore: the training core shared by every method; it never imports the launcher."""
