"""What people see: reports, tables, figures."""
