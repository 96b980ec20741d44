"""Audits: experiments as plain values, a resumable run, a table of rows, and a gate."""
