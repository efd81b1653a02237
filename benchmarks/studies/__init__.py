"""What the library itself is checked by: coverage, faults, laws."""
