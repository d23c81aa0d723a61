"""Several upstreams as one: who is asked, when a failure may be tried elsewhere, who rests."""
