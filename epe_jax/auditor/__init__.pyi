from . import adapters as adapters
from .audit_config import AuditConfig as AuditConfig
from .auditor import Auditor as Auditor
from .auditor import CanarySum as CanarySum
