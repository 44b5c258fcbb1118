"""An app for Streamlit."""

import streamlit

streamlit.write("hello")
