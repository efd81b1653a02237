from .audited_run import run as run
from .model_file import load_params as load_params
from .run_result import RunResult as RunResult
from .run_result import load_result as load_result
from .setup.workloads import Workload as Workload
from .sweeps.sweep import run_sweep as run_sweep
from .sweeps.sweep_points import make_grid as make_grid
