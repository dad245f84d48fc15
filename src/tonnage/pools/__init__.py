"""Where the bytes live. Knows neither CSI nor Kubernetes."""
