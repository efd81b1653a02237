from .analytic import Allocation as Allocation
from .analytic import Analytic as Analytic
from .analytic import Mixture as Mixture
from .gaussian import epsilon_of_poisson as epsilon_of_poisson
from .gaussian import epsilon_of_releases as epsilon_of_releases
from .random_allocation import compute_lines as compute_lines
from .random_allocation import epsilon_of_allocation as epsilon_of_allocation
