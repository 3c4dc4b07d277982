"""Closed months, charges, and the comparison with invoices."""
