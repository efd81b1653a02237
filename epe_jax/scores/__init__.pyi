from . import counts as counts
from . import score_files as score_files
