"""What people read and look at: reports, tables, figures."""
