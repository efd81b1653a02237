"""The rules of the suite, one module for each subject."""
