"""HTTP: routes, authentication, limits, the page."""
