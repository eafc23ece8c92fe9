"""Identifiers: one NewType per thing that is counted, so the type checker rejects mixing them."""

from typing import NewType

PageId = NewType("PageId", int)  # index of a page inside one pool
SeqId = NewType("SeqId", int)  # a running sequence's row in the core's page tables, 0 .. seqs_max - 1
StepId = NewType("StepId", int)  # one forward step, strictly increasing
AccountId = NewType("AccountId", int)  # a party that may own pages
RequestId = NewType("RequestId", str)  # a request, unique among the live ones

NULL_PAGE = PageId(0)  # stands where the sliding window has let go; never allocated
