"""Containers: what they run, and their state."""

TEXT = """\
@core.v1
Container
  args [str]
  command [str]
  env [EnvVar]+name
  envFrom [EnvFromSource]
  image str
  imagePullPolicy str
  lifecycle Lifecycle
  livenessProbe Probe
  name! str
  ports [ContainerPort]+containerPort
  readinessProbe Probe
  resizePolicy [ContainerResizePolicy]
  resources ResourceRequirements
  restartPolicy str?
  restartPolicyRules [ContainerRestartRule]
  securityContext SecurityContext
  startupProbe Probe
  stdin bool
  stdinOnce bool
  terminationMessagePath str
  terminationMessagePolicy str
  tty bool
  volumeDevices [VolumeDevice]+devicePath
  volumeMounts [VolumeMount]+mountPath
  workingDir str
EnvVar
  name! str
  value str
  valueFrom EnvVarSource
EnvVarSource
  configMapKeyRef ConfigMapKeySelector
  fieldRef ObjectFieldSelector
  fileKeyRef FileKeySelector
  resourceFieldRef ResourceFieldSelector
  secretKeyRef SecretKeySelector
ConfigMapKeySelector
  key! str
  name str
  optional bool?
ObjectFieldSelector
  apiVersion str
  fieldPath! str
FileKeySelector
  key! str
  optional bool?
  path! str
  volumeName! str
ResourceFieldSelector
  containerName str
  divisor quantity
  resource! str
SecretKeySelector
  key! str
  name str
  optional bool?
EnvFromSource
  configMapRef ConfigMapEnvSource
  prefix str
  secretRef SecretEnvSource
ConfigMapEnvSource
  name str
  optional bool?
SecretEnvSource
  name str
  optional bool?
Lifecycle
  postStart LifecycleHandler
  preStop LifecycleHandler
  stopSignal str?
LifecycleHandler
  exec ExecAction
  httpGet HTTPGetAction
  sleep SleepAction
  tcpSocket TCPSocketAction
ExecAction
  command [str]
HTTPGetAction
  host str
  httpHeaders [HTTPHeader]
  path str
  port! intstr
  scheme str
HTTPHeader
  name! str
  value! str
SleepAction
  seconds! long
TCPSocketAction
  host str
  port! intstr
Probe
  exec ExecAction
  failureThreshold int
  grpc GRPCAction
  httpGet HTTPGetAction
  initialDelaySeconds int
  periodSeconds int
  successThreshold int
  tcpSocket TCPSocketAction
  terminationGracePeriodSeconds long?
  timeoutSeconds int
GRPCAction
  port! int
  service str?
ContainerPort
  containerPort! int
  hostIP str
  hostPort int
  name str
  protocol str
ContainerResizePolicy
  resourceName! str
  restartPolicy! str
ResourceRequirements
  claims [ResourceClaim]
  limits {quantity}
  requests {quantity}
ResourceClaim
  name! str
  request str
ContainerRestartRule
  action! str
  exitCodes ContainerRestartRuleOnExitCodes
ContainerRestartRuleOnExitCodes
  operator! str
  values [int]
SecurityContext
  allowPrivilegeEscalation bool?
  appArmorProfile AppArmorProfile
  capabilities Capabilities
  privileged bool?
  procMount str?
  readOnlyRootFilesystem bool?
  runAsGroup long?
  runAsNonRoot bool?
  runAsUser long?
  seLinuxOptions SELinuxOptions
  seccompProfile SeccompProfile
  windowsOptions WindowsSecurityContextOptions
AppArmorProfile
  localhostProfile str?
  type! str
Capabilities
  add [str]
  drop [str]
SELinuxOptions
  level str
  role str
  type str
  user str
SeccompProfile
  localhostProfile str?
  type! str
WindowsSecurityContextOptions
  gmsaCredentialSpec str?
  gmsaCredentialSpecName str?
  hostProcess bool?
  runAsUserName str?
VolumeDevice
  devicePath! str
  name! str
VolumeMount
  mountPath! str
  mountPropagation str?
  name! str
  readOnly bool
  recursiveReadOnly str?
  subPath str
  subPathExpr str
EphemeralContainer
  args [str]
  command [str]
  env [EnvVar]+name
  envFrom [EnvFromSource]
  image str
  imagePullPolicy str
  lifecycle Lifecycle
  livenessProbe Probe
  name! str
  ports [ContainerPort]+containerPort
  readinessProbe Probe
  resizePolicy [ContainerResizePolicy]
  resources ResourceRequirements
  restartPolicy str
  restartPolicyRules [ContainerRestartRule]
  securityContext SecurityContext
  startupProbe Probe
  stdin bool
  stdinOnce bool
  targetContainerName str
  terminationMessagePath str
  terminationMessagePolicy str
  tty bool
  volumeDevices [VolumeDevice]+devicePath
  volumeMounts [VolumeMount]+mountPath
  workingDir str
ContainerStatus
  allocatedResources {quantity}
  allocatedResourcesStatus [ResourceStatus]+name
  containerID str
  image! str
  imageID! str
  lastState ContainerState
  name! str
  ready! bool
  resources ResourceRequirements
  restartCount! int
  started bool?
  state ContainerState
  stopSignal str?
  user ContainerUser
  volumeMounts [VolumeMountStatus]+mountPath
ResourceStatus
  name! str
  resources [ResourceHealth]
ResourceHealth
  health str
  resourceID! str
ContainerState
  running ContainerStateRunning
  terminated ContainerStateTerminated
  waiting ContainerStateWaiting
ContainerStateRunning
  startedAt time
ContainerStateTerminated
  containerID str
  exitCode! int
  finishedAt time
  message str
  reason str
  signal int
  startedAt time
ContainerStateWaiting
  message str
  reason str
ContainerUser
  linux LinuxContainerUser
LinuxContainerUser
  gid! long
  supplementalGroups [long]
  uid! long
VolumeMountStatus
  mountPath! str
  name! str
  readOnly bool
  recursiveReadOnly str?
"""
