"""Numbers, estimates and tables as text: what terminal, reports and pages share."""
