"""Kinds that are asked and answered at once, and are never stored."""

TEXT = """\
@authentication.v1
TokenReview
  apiVersion str
  kind str
  metadata ObjectMeta
  spec! TokenReviewSpec
  status TokenReviewStatus
TokenReviewSpec
  audiences [str]
  token str
TokenReviewStatus
  audiences [str]
  authenticated bool
  error str
  user UserInfo
UserInfo
  extra {[str]}
  groups [str]
  uid str
  username str
TokenRequest
  apiVersion str
  kind str
  metadata ObjectMeta
  spec! TokenRequestSpec
  status TokenRequestStatus
TokenRequestSpec
  audiences! [str]
  boundObjectRef BoundObjectReference
  expirationSeconds long?
BoundObjectReference
  apiVersion str
  kind str
  name str
  uid str
TokenRequestStatus
  expirationTimestamp! time
  token! str
SelfSubjectReview
  apiVersion str
  kind str
  metadata ObjectMeta
  status SelfSubjectReviewStatus
SelfSubjectReviewStatus
  userInfo UserInfo
@authorization.v1
SelfSubjectAccessReview
  apiVersion str
  kind str
  metadata ObjectMeta
  spec! SelfSubjectAccessReviewSpec
  status SubjectAccessReviewStatus
SelfSubjectAccessReviewSpec
  nonResourceAttributes NonResourceAttributes
  resourceAttributes ResourceAttributes
NonResourceAttributes
  path str
  verb str
ResourceAttributes
  fieldSelector FieldSelectorAttributes
  group str
  labelSelector LabelSelectorAttributes
  name str
  namespace str
  resource str
  subresource str
  verb str
  version str
FieldSelectorAttributes
  rawSelector str
  requirements [FieldSelectorRequirement]
LabelSelectorAttributes
  rawSelector str
  requirements [LabelSelectorRequirement]
SubjectAccessReviewStatus
  allowed! bool
  denied bool
  evaluationError str
  reason str
SelfSubjectRulesReview
  apiVersion str
  kind str
  metadata ObjectMeta
  spec! SelfSubjectRulesReviewSpec
  status SubjectRulesReviewStatus
SelfSubjectRulesReviewSpec
  namespace str
SubjectRulesReviewStatus
  evaluationError str
  incomplete! bool
  nonResourceRules! [NonResourceRule]
  resourceRules! [ResourceRule]
NonResourceRule
  nonResourceURLs [str]
  verbs! [str]
ResourceRule
  apiGroups [str]
  resourceNames [str]
  resources [str]
  verbs! [str]
@policy.v1
Eviction
  apiVersion str
  deleteOptions DeleteOptions
  kind str
  metadata ObjectMeta
"""
