"""Schema text: review kinds, which are answered and never stored."""

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
  authenticated bool: Whether the token is good.
  error str: What went wrong.
  user UserInfo: Name of the user.
UserInfo: A user.
  extra {[str]}: More about the user.
  groups [str]: Groups.
  uid str: Identity, unique in space and time.
  username str: Name.
TokenRequest
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! TokenRequestSpec: What is wanted.
  status TokenRequestStatus: What is.
TokenRequestSpec
  audiences! [str]: Who a token is for.
  boundObjectRef BoundObjectReference: What the token ends with.
  expirationSeconds long?: Seconds that a token lives.
BoundObjectReference
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  name str: Name.
  uid str: Identity, unique in space and time.
TokenRequestStatus
  expirationTimestamp! time: When it ends.
  token! str: The token.
SelfSubjectReview: The question who I am.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  status SelfSubjectReviewStatus: What is.
SelfSubjectReviewStatus
  userInfo UserInfo: Who it is.
@authorization.v1
SelfSubjectAccessReview: The question whether I may do something.
  apiVersion str: Group and version of the object.
  kind str: Kind of the object.
  metadata ObjectMeta: Name, labels, owners and times.
  spec! SelfSubjectAccessReviewSpec: What is wanted.
  status SubjectAccessReviewStatus: What is.
SelfSubjectAccessReviewSpec
  nonResourceAttributes NonResourceAttributes: An action on a path.
  resourceAttributes ResourceAttributes: An action on a resource.
NonResourceAttributes
  path str: Path.
  verb str: What to do.
ResourceAttributes
  fieldSelector FieldSelectorAttributes: Which fields.
  group str: Group.
  labelSelector LabelSelectorAttributes: Which objects, by labels.
  name str: Name.
  namespace str: Namespace.
  resource str: Which resource.
  subresource str: Part of the resource.
  verb str: What to do.
  version str: Version.
FieldSelectorAttributes
  rawSelector str: The selector as text.
  requirements [FieldSelectorRequirement]: The conditions.
LabelSelectorAttributes
  rawSelector str: The selector as text.
  requirements [LabelSelectorRequirement]: The conditions.
SubjectAccessReviewStatus
  allowed! bool: Whether it is allowed.
  denied bool: Whether it is forbidden.
  evaluationError str: What went wrong meanwhile.
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
  evaluationError str: What went wrong meanwhile.
  incomplete! bool: Whether something is missing.
  nonResourceRules! [NonResourceRule]: What may be done with paths.
  resourceRules! [ResourceRule]: What may be done with resources.
NonResourceRule
  nonResourceURLs [str]: Paths.
  verbs! [str]: What may be done.
ResourceRule
  apiGroups [str]: Groups.
  resourceNames [str]: Names of objects.
  resources [str]: Resources that are asked for.
  verbs! [str]: What may be done.
"""
