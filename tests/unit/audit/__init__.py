"""The auditor, over topics in memory."""
