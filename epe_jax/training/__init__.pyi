from . import clipping as clipping
from . import noise as noise
from .fedavg import Algorithm as Algorithm
from .fedavg import Cohort as Cohort
from .fedavg import Injection as Injection
from .fedavg import RoundInfo as RoundInfo
from .fedavg import TrainState as TrainState
from .fedavg import dp_fedavg as dp_fedavg
