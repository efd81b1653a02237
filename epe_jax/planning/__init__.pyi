from .planned_scores import PlannedRun as PlannedRun
from .predictions import Plan as Plan
from .predictions import plan as plan
