"""Tables and figures of "Tight Auditing of Differentially Private Machine Learning"."""
