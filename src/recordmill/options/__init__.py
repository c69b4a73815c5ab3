"""Every option, declared once; flags, keywords, help, refusals and the reference page come from that."""
