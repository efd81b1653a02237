"""The app is run by Flower, and has no doctests."""

collect_ignore = ['audited_app.py']
