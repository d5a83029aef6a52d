"""What a judgement looks like: in a terminal, as CSV, as a page. It measures and decides nothing."""
