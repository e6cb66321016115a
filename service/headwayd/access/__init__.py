"""Who calls: certificates of this service, credentials of its callers, and what the operator's files say of both."""
