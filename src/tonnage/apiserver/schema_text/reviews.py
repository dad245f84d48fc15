"""Kinds that are asked and answered at once, and are never stored."""

TEXT = """\
@authentication.v1
TokenReview: The question who a token belongs to.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! TokenReviewSpec: What is wanted.
  status TokenReviewStatus: What is.
TokenReviewSpec
  audiences [str]: Who a token is for.
  token str: The token.
TokenReviewStatus
  audiences [str]: Who a token is for.
  authenticated bool
  error str
  user UserInfo
UserInfo
  extra {[str]}
  groups [str]
  uid str: Identity, unique in space and time.
  username str
TokenRequest
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! TokenRequestSpec: What is wanted.
  status TokenRequestStatus: What is.
TokenRequestSpec
  audiences! [str]: Who a token is for.
  boundObjectRef BoundObjectReference
  expirationSeconds long?: Seconds that a token lives.
BoundObjectReference
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  name str: Name.
  uid str: Identity, unique in space and time.
TokenRequestStatus
  expirationTimestamp! time
  token! str: The token.
SelfSubjectReview: The question who I am.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  status SelfSubjectReviewStatus: What is.
SelfSubjectReviewStatus
  userInfo UserInfo
@authorization.v1
SelfSubjectAccessReview: The question whether I may do something.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! SelfSubjectAccessReviewSpec: What is wanted.
  status SubjectAccessReviewStatus: What is.
SelfSubjectAccessReviewSpec
  nonResourceAttributes NonResourceAttributes
  resourceAttributes ResourceAttributes
NonResourceAttributes
  path str: Path.
  verb str
ResourceAttributes
  fieldSelector FieldSelectorAttributes
  group str
  labelSelector LabelSelectorAttributes
  name str: Name.
  namespace str: Namespace.
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
  reason str: Why, in one word for programs.
SelfSubjectRulesReview: The question what I may do.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! SelfSubjectRulesReviewSpec: What is wanted.
  status SubjectRulesReviewStatus: What is.
SelfSubjectRulesReviewSpec
  namespace str: Namespace.
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
  resources [str]: Resources that are asked for.
  verbs! [str]
@policy.v1
Eviction: The wish to remove a pod gently.
  apiVersion str: Group and version of the object.
  deleteOptions DeleteOptions
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
"""
