"""Web pages of reports: plots, page frames, and the browser that shows them."""
