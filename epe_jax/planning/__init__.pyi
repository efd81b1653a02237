from .planned_run import PlannedRun as PlannedRun
from .plans import Plan as Plan
from .predictions import plan as plan
