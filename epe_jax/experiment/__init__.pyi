from .audited_run import run as run
from .model_file import load_params as load_params
from .result_file import load_result as load_result
