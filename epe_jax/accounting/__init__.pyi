from .analytic import Analytic as Analytic
from .gaussian import epsilon_of_poisson as epsilon_of_poisson
from .gaussian import epsilon_of_releases as epsilon_of_releases
from .random_allocation import epsilon_of_allocation as epsilon_of_allocation
