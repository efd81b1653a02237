from .over_runs import EpsilonSpread as EpsilonSpread
from .over_runs import RandomEffects as RandomEffects
from .run_effects import OverRuns as OverRuns
from .run_effects import RunShift as RunShift
from .run_effects import evaluate_runs as evaluate_runs
