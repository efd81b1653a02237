from .planned_run import PlannedRun as PlannedRun
from .plans import Plan as Plan
from .power import BoundName as BoundName
from .power import Power as Power
from .power import compute_power as compute_power
from .power import min_canaries as min_canaries
from .predictions import plan as plan
