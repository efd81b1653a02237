"""Reports of several: labelled runs, the points of a sweep, rounds, seeds."""
