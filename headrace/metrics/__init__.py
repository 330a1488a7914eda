"""What a worker tells Prometheus: every metric's definition, where its numbers come from, and the page that shows them."""
