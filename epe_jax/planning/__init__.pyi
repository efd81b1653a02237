from .planned_run import PlannedRun as PlannedRun
from .plans import Plan as Plan
from .power import BoundName as BoundName
from .power import min_canaries as min_canaries
from .predictions import plan as plan
